"""Access control: keys, tokens, page origins, quotas, opening rates and admission."""
