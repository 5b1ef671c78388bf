"""What concerns the data directory as a whole: whose it is, the room on its disk, whether its clock can be believed."""
