"""Many runs: comparisons, reports, benchmarks, fidelity."""
