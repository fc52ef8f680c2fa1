"""What is on a bookie's disks: names, manifest, identity, and the order of a checkpoint. Formats: `README.md` here."""
