"""Draft models, and the process that proposes tokens with them ahead of the target."""
