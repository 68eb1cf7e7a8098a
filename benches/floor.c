/* The floor: the least a C function in another shared library can do for a value of the calling thread.
   Built as a shared library with the default TLS model, which is what any such library gets. */
static _Thread_local int value;

int floor_get(void);
int floor_get(void) { return value; }
