"""`./dev wheels`: one wheel for each processor architecture, built, checked and tried (docs/install.md)."""
