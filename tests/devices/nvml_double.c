/* A double of libnvidia-ml.so.1: no GPU answers here, but a text file that is read again at every call.
 *
 * SEATRIAL_NVML_DOUBLE names the file. It has sections "[system]" and "[0]", "[1]", ... for the devices, and lines
 * "key = value" in them. "!15" as a value is the code that the function returns instead; a key that is not there is
 * NVML_ERROR_NOT_SUPPORTED, as a GPU answers that lacks a sensor; "* = !15" holds for every function of the device, as
 * after it fell off the bus; "~" never returns. Layouts and numbers are nvml.h's (NVIDIA/go-nvml, gen/nvml/nvml.h). As unkind as the
 * library: a structure of another version is refused with code 25, a buffer that is too small with code 7.
 *
 * A file NAME.from-3 takes its place from the third snapshot on that a process takes: one begins when the serial number
 * of device 0 is asked for.
 *
 * A function is left out of the library by -DnvmlDeviceGetFoo=absent_nvmlDeviceGetFoo, as an old driver lacks it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, OTHER_VERSION = 25 };
typedef unsigned long long wide;
typedef struct { wide place; } *handle;

static int snapshots;

static FILE *answers(void) {
    const char *path = getenv("SEATRIAL_NVML_DOUBLE");
    char later[512];
    FILE *file = NULL;
    int number;
    for (number = snapshots; path && !file && number; number--) {
        snprintf(later, sizeof later, "%s.from-%d", path, number);
        file = fopen(later, "r");
    }
    return file || !path ? file : fopen(path, "r");
}

static int look_up(const char *section, const char *key, char *into, size_t size) {
    FILE *file = answers();
    char line[512], name[160], value[256], all[256] = "", wanted[64];
    int inside = 0, found = 0;
    if (!file) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    snprintf(wanted, sizeof wanted, "[%s]", section);
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '[') { inside = strncmp(line, wanted, strlen(wanted)) == 0; continue; }
        if (!inside || sscanf(line, "%159s = %255[^\n]", name, value) != 2) continue;
        if (!strcmp(name, "*")) strcpy(all, value);
        else if (!found && !strcmp(name, key)) { found = 1; snprintf(into, size, "%s", value); }
    }
    fclose(file);
    if (all[0]) snprintf(into, size, "%s", all);
    if (!all[0] && !found) return NOT_SUPPORTED;
    while (into[0] == '~') pause(); /* a driver that does not answer */
    return into[0] == '!' ? atoi(into + 1) : SUCCESS;
}

static const char *section_of(handle device) {
    static __thread char text[24];
    snprintf(text, sizeof text, "%llu", (wide)(size_t)device - 1000);
    return text;
}

static int number_of(handle device, const char *key, double *value) {
    char text[256];
    int code = look_up(section_of(device), key, text, sizeof text);
    if (code == SUCCESS) *value = strtod(text, NULL);
    return code;
}

static int text_of(const char *section, const char *key, char *into, unsigned size) {
    char text[256];
    int code = look_up(section, key, text, sizeof text);
    if (code == SUCCESS && strlen(text) >= size) return TOO_SMALL;
    if (code == SUCCESS) strcpy(into, text);
    return code;
}

static unsigned count_devices(void) {
    char text[256];
    return look_up("system", "count", text, sizeof text) == SUCCESS ? (unsigned)atoi(text) : 0;
}

int nvmlInit_v2(void) {
    char text[256];
    int code = look_up("system", "nvmlInit_v2", text, sizeof text);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}
int nvmlSystemGetDriverVersion(char *into, unsigned size) { return text_of("system", "driver", into, size); }
int nvmlDeviceGetCount_v2(unsigned *count) {
    char text[256];
    int code = look_up("system", "count", text, sizeof text);
    if (code == SUCCESS) *count = (unsigned)atoi(text);
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device) {
    char section[24], text[256];
    int code;
    if (index >= count_devices()) return INVALID;
    snprintf(section, sizeof section, "%u", index);
    code = look_up(section, "nvmlDeviceGetHandleByIndex_v2", text, sizeof text);
    *device = (handle)(size_t)(1000 + index);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}
static int find(const char *key, const char *wanted, handle *device) {
    unsigned index;
    for (index = 0; index < count_devices(); index++) {
        char section[24], text[256];
        snprintf(section, sizeof section, "%u", index);
        if (look_up(section, key, text, sizeof text) == SUCCESS && !strcasecmp(text, wanted))
            return nvmlDeviceGetHandleByIndex_v2(index, device);
    }
    return NOT_FOUND;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device) { return find("nvmlDeviceGetUUID", uuid, device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, handle *device) {
    char full[64];
    snprintf(full, sizeof full, "%s%s", strlen(address) < 14 ? "0000" : "", address);
    return find("bus", full, device);
}

#define TEXT(name) \
    int name(handle device, char *into, unsigned size) { return text_of(section_of(device), #name, into, size); }
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetVbiosVersion)
int nvmlDeviceGetSerial(handle device, char *into, unsigned size) {
    snapshots += (size_t)device == 1000;
    return text_of(section_of(device), "nvmlDeviceGetSerial", into, size);
}

#define NUMBER(name, type) \
    int name(handle device, type *into) { \
        double value; \
        int code = number_of(device, #name, &value); \
        if (code == SUCCESS) *into = (type)value; \
        return code; \
    }
NUMBER(nvmlDeviceGetPowerUsage, unsigned)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetComputeMode, unsigned)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, wide)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, wide)

#define ASKED(name) \
    int name(handle device, unsigned which, unsigned *into) { \
        char key[96]; \
        double value; \
        int code; \
        snprintf(key, sizeof key, #name ".%u", which); \
        code = number_of(device, key, &value); \
        if (code == SUCCESS) *into = (unsigned)value; \
        return code; \
    }
ASKED(nvmlDeviceGetTemperature)
ASKED(nvmlDeviceGetTemperatureThreshold)
ASKED(nvmlDeviceGetClockInfo)
ASKED(nvmlDeviceGetMaxClockInfo)

#define PAIR(name) \
    int name(handle device, unsigned *current, unsigned *pending) { \
        double value; \
        int code = number_of(device, #name, &value); \
        if (code == SUCCESS) *current = *pending = (unsigned)value; \
        return code; \
    }
PAIR(nvmlDeviceGetMigMode)
PAIR(nvmlDeviceGetEccMode)

int nvmlDeviceGetMemoryErrorCounter(handle device, unsigned error, unsigned kept, unsigned location, wide *into) {
    char key[96];
    double value;
    int code;
    snprintf(key, sizeof key, "nvmlDeviceGetMemoryErrorCounter.%u.%u.%u", error, kept, location);
    code = number_of(device, key, &value);
    if (code == SUCCESS) *into = (wide)value;
    return code;
}

struct temperature { unsigned version, sensor; int temperature; };
int nvmlDeviceGetTemperatureV(handle device, struct temperature *into) {
    double value;
    int code = number_of(device, "nvmlDeviceGetTemperature.0", &value);
    if (into->version != 0x100000C) return OTHER_VERSION;
    if (code == SUCCESS) into->temperature = (int)value;
    return code;
}
struct margin { unsigned version; int margin; };
int nvmlDeviceGetMarginTemperature(handle device, struct margin *into) {
    double value;
    int code = number_of(device, "nvmlDeviceGetMarginTemperature", &value);
    if (into->version != 0x1000008) return OTHER_VERSION;
    if (code == SUCCESS) into->margin = (int)value;
    return code;
}
struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(handle device, struct utilization *into) {
    double value;
    int code = number_of(device, "nvmlDeviceGetUtilizationRates", &value);
    if (code == SUCCESS) into->gpu = into->memory = (unsigned)value;
    return code;
}
struct memory { unsigned version; wide total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory *into) {
    double used, total = 0;
    int code = number_of(device, "memory.used", &used);
    if (into->version != 0x02000028) return OTHER_VERSION;
    if (code == SUCCESS) code = number_of(device, "memory.total", &total);
    if (code == SUCCESS) { into->total = total; into->used = used; into->free = total - used; into->reserved = 0; }
    return code;
}
struct old_memory { wide total, free, used; };
int nvmlDeviceGetMemoryInfo(handle device, struct old_memory *into) {
    double used, total = 0;
    int code = number_of(device, "memory.used", &used);
    if (code == SUCCESS) code = number_of(device, "memory.total", &total);
    if (code == SUCCESS) { into->total = total; into->used = used; into->free = total - used; }
    return code;
}
struct repair { unsigned version, channel, tpc; };
int nvmlDeviceGetRepairStatus(handle device, struct repair *into) {
    double channel, tpc = 0;
    int code = number_of(device, "repair.channel", &channel);
    if (into->version != 0x100000C) return OTHER_VERSION;
    if (code == SUCCESS) code = number_of(device, "repair.tpc", &tpc);
    if (code == SUCCESS) { into->channel = channel; into->tpc = tpc; }
    return code;
}
struct sram { unsigned version; wide counts[11]; unsigned exceeded; };
int nvmlDeviceGetSramEccErrorStatus(handle device, struct sram *into) {
    double value;
    int code = number_of(device, "sram.exceeded", &value);
    if (into->version != 0x1000068) return OTHER_VERSION;
    if (code == SUCCESS) into->exceeded = (unsigned)value;
    return code;
}
struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state;
                unsigned health; };
int nvmlDeviceGetGpuFabricInfoV(handle device, struct fabric *into) {
    double state, status = 0, health = 0;
    int code = number_of(device, "fabric.state", &state);
    if (into->version != 0x02000024) return OTHER_VERSION;
    if (code == SUCCESS) {
        number_of(device, "fabric.status", &status);
        number_of(device, "fabric.health", &health);
        into->state = state; into->status = status; into->health = health; into->clique = 0;
    }
    return code;
}
struct old_fabric { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; };
int nvmlDeviceGetGpuFabricInfo(handle device, struct old_fabric *into) {
    double state, status = 0;
    int code = number_of(device, "fabric.state", &state);
    if (code == SUCCESS) {
        number_of(device, "fabric.status", &status);
        into->state = state; into->status = status; into->clique = 0;
    }
    return code;
}
int nvmlDeviceValidateInforom(handle device) {
    double value;
    return number_of(device, "nvmlDeviceValidateInforom", &value);
}
struct process { unsigned pid; wide used; unsigned instance, compute_instance; };
struct old_process { unsigned pid; wide used; };
static int processes_of(handle device, unsigned *count, void *into, size_t size) {
    char text[256], *next = text;
    unsigned room = *count, number = 0, pids[64];
    int code = look_up(section_of(device), "processes", text, sizeof text);
    if (code != SUCCESS) return code;
    while (number < 64 && *next) {
        char *end;
        unsigned pid = strtoul(next, &end, 10);
        if (end == next) break;
        pids[number++] = pid;
        next = end;
    }
    *count = number;
    if (number > room || (number && !into)) return TOO_SMALL;
    while (number--) { memset((char *)into + number * size, 0, size); memcpy((char *)into + number * size, &pids[number], 4); }
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct process *into) {
    return processes_of(device, count, into, sizeof *into);
}
int nvmlDeviceGetComputeRunningProcesses_v2(handle device, unsigned *count, struct process *into) {
    return processes_of(device, count, into, sizeof *into);
}
int nvmlDeviceGetComputeRunningProcesses(handle device, unsigned *count, struct old_process *into) {
    return processes_of(device, count, into, sizeof *into);
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; };
int nvmlDeviceGetPciInfo_v3(handle device, struct pci *into) {
    memset(into, 0, sizeof *into);
    return text_of(section_of(device), "bus", into->address, sizeof into->address);
}
int nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *active) {
    char key[64], text[256];
    double links, inactive = 0, absent = 0;
    int code = number_of(device, "links", &links);
    if (code != SUCCESS) return code;
    if (link >= links) return INVALID;
    number_of(device, "links.absent", &absent);
    if (link < absent) return NOT_SUPPORTED;
    snprintf(key, sizeof key, "links.%u", link);
    code = look_up(section_of(device), key, text, sizeof text);
    if (code != SUCCESS && code != NOT_SUPPORTED) return code;
    number_of(device, "links.inactive", &inactive);
    *active = link >= inactive;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, unsigned link, struct pci *into) {
    char key[64];
    memset(into, 0, sizeof *into);
    snprintf(key, sizeof key, "remote.%u", link);
    int code = text_of(section_of(device), key, into->address, sizeof into->address);
    return code == NOT_SUPPORTED ? text_of(section_of(device), "remote", into->address, sizeof into->address) : code;
}
int nvmlDeviceGetTopologyCommonAncestor(handle one, handle other, unsigned *level) {
    char key[64];
    double value;
    snprintf(key, sizeof key, "ancestor.%s", section_of(other));
    int code = number_of(one, key, &value);
    if (code == SUCCESS) *level = (unsigned)value;
    return code;
}
struct field { unsigned field, scope; long long timestamp, latency; int type, code; union { double d; wide w; } value; };
int nvmlDeviceGetFieldValues(handle device, int count, struct field *fields) {
    char text[256];
    int at, code = look_up(section_of(device), "fields", text, sizeof text);
    if (code != SUCCESS && code != NOT_SUPPORTED) return code;
    for (at = 0; at < count; at++) {
        char key[64];
        double value = 0;
        snprintf(key, sizeof key, "field.%u.%u", fields[at].field, fields[at].scope);
        fields[at].code = number_of(device, key, &value);
        if (fields[at].code == NOT_SUPPORTED) {
            snprintf(key, sizeof key, "field.%u", fields[at].field);
            fields[at].code = number_of(device, key, &value);
        }
        fields[at].type = value < 0 ? 4 : 3; /* signed or unsigned long long */
        fields[at].value.w = value < 0 ? (wide)(long long)value : (wide)value;
    }
    return SUCCESS;
}
