"""Pre-tokenization: split patterns and the scanners that find where pretokens end."""
