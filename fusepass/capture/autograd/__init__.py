"""Gradients that eager leaves out, and aliases: what a captured branch must not change."""
