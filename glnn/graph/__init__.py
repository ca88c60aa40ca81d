"""What is computed: operators on values, in a graph. Knows no GL."""
