"""Facts about code objects: control flow, liveness, exception handlers, with-blocks."""
