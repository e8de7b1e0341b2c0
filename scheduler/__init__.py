"""The decisions, pure: what runs next, what to draft and how long to wait."""
