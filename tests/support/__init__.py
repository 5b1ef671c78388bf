"""What several suites share: servers as processes, stock clients as drivers."""
