"""The report: tables, plots, samples and the page's template."""
