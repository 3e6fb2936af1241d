"""The shop's nightly report: what was sold for each evening, by a Celery task."""
