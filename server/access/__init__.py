"""Access control: keys, tokens, page origins, opening rates and admission."""
