"""What a bench tells: a document that machines read, tables, and a page with plots."""
