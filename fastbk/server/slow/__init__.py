"""What slowed commits and answers: the flight recorder's records, judged, counted, logged and shown."""
