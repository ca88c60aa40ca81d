"""What takes several operators: graphs of them that layers and readers of models add to theirs."""
