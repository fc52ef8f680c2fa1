"""The main job: real data through three bookies, with one killed in the middle."""
