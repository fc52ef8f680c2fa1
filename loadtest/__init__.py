"""Load tests with locust. See README.md here."""
