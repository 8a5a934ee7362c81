"""Streams that outlive their server: tickets that carry all of a stream's state from one replica to another.

`saved` is what a ticket holds, `delivery` says where in a stream's results it falls, `seal` and `tickets` make and read
it, `office` is what one replica knows of tickets, `resuming` is one connection's part of it all.
"""
