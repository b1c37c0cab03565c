"""Numbers and sizes, as Dynamo holds them: constants, symbols, unbacked ones."""
