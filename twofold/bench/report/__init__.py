"""Reports: the JSON document, CSV, tables on terminals, and an HTML page with charts."""
