"""The built-in audits: files, ledgers, identities, rewards and scores."""
