"""What can be measured, one module for each kind of load. Each has a table `SCENARIOS`: name to a function of options."""
