"""Who answers: given messages and tools, a policy returns a completion."""
