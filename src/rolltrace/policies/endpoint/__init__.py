"""The policy for a model on a server with the OpenAI chat API."""
