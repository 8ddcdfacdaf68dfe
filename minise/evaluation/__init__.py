"""What is built on the core: tasks. The core never imports it."""
