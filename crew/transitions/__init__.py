"""Pure transitions: `advance(plan, state, event)` returns the next state and the events that follow."""
