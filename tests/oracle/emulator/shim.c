/* What the emulator's wheel needs beside itself: three names of newer C libraries, and a clock that stops a guest that does not end. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

unsigned long long __isoc23_strtoull(const char *text, char **end, int base) { return strtoull(text, end, base); }

long __isoc23_strtol(const char *text, char **end, int base) { return strtol(text, end, base); }

int __isoc23_sscanf(const char *text, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int count = vsscanf(text, format, values);
    va_end(values);
    return count;
}

static void (*stop)(unsigned);

static void expired(int signal_number) {
    (void)signal_number;
    stop(0);
}

/* Call `function(0)` after `seconds` of this process's own computing; 0 disarms. */
void watch(void (*function)(unsigned), double seconds) {
    struct itimerval timer = {{0, 0}, {(time_t)seconds, (suseconds_t)((seconds - (time_t)seconds) * 1e6)}};
    stop = function;
    signal(SIGVTALRM, expired);
    setitimer(ITIMER_VIRTUAL, &timer, NULL);
}
