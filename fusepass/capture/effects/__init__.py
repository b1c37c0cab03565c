"""What is applied around a compiled graph: exceptions, printed text, log records, warnings."""
