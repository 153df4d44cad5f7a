"""For all tests."""

import os

# TensorBoard brings gRPC into this process. Its handlers around fork() would restart its threads in the
# child, where they abort before the program of the test is executed.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
