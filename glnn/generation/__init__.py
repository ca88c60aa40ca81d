"""Language models: their files, tokenizers, graphs, and the generation of text."""
