"""What was used, and by whom: the records of the last requests, and sums by day that outlive the server."""
