"""What all suites share: a private cluster and a tally of results."""
