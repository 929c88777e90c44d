"""An episode on a task: tools, tree, environment, draws."""
