"""The client protocol: schema, generated code, and typed messages. README.md here describes it."""
