"""The report: figure data from run folders, one HTML file that shows it, and pictures drawn from the same data."""
