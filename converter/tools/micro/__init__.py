"""Export to C++ for microcontrollers: a program as constant arrays, with a session over TensorFlow Lite Micro."""
