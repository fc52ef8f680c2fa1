"""What Apache's bookies left on their disks, read offline and taken into a bookie of ours."""
