"""The coordinators that this broker runs, over the pure machines of `twofold.coordinator`."""
