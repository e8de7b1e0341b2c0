"""Measuring Paceline: workloads, baselines, comparisons and reports."""
