"""Running an executable: inputs, the commands of a device, results. Knows no graphs."""
