"""Access control: keys, tokens, enrolled voices, page origins and admission."""
