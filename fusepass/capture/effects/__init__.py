"""Make exceptions, printed text, log records and warnings around a compiled graph."""
