"""The decisions, pure: what runs next, and how long to wait for a proposal."""
