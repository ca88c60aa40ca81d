"""Running what was planned: inputs, the commands of a device, results. Knows no graphs."""
