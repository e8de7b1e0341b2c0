"""Making drafts: data from a target, training, and export to published formats."""
