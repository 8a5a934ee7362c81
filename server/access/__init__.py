"""Access control: keys, tokens, page origins and admission."""
