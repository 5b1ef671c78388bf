"""The state-machine runtime under the controller and the coordinators."""
